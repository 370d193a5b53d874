use cairn_base::Timestamp;
use cairn_bucket::images::ImageId;

use super::*;

#[test]
fn places_and_volumes_are_read_and_written() {
    for text in ["offsite:", "offsite:servers/a/"] {
        assert_eq!(ImagesPlace::parse(text).unwrap().to_string(), text);
    }
    for text in ["offsite", "offsite:servers", "off site:", "offsite:A/", "offsite:a//b/"] {
        assert!(ImagesPlace::parse(text).is_err(), "{text}");
    }
    for text in ["offsite:vol0", "offsite:servers/a/vol0", "offsite:a/vol0@17", "offsite:"] {
        assert_eq!(WantedVolume::parse(text).unwrap().to_string(), text);
    }
    assert!(WantedVolume::parse("vol0").is_err());
}

#[test]
fn image_is_named_by_its_number_or_the_beginning_of_its_id() {
    let label = |number: u64, first: u8| ImageLabel {
        id: ImageId([first; 16]),
        number,
        taken: Timestamp(number),
        blocks: 1,
    };
    let labels = [label(3, 0xab), label(7, 0xac), label(12, 0x12)];
    let number = |text: &str| {
        let wanted = WantedVolume::parse(&format!("offsite:vol0{text}")).unwrap();
        wanted.image_of(&labels).map(|label| label.number)
    };
    assert_eq!(number("").unwrap(), 12);
    assert_eq!(number("@7").unwrap(), 7);
    assert_eq!(number("@12").unwrap(), 12);
    assert_eq!(number("@abab").unwrap(), 3);
    assert!(number("@ab").is_err(), "too short");
    assert!(number("@8").is_err());
    assert!(WantedVolume::parse("offsite:vol0").unwrap().image_of(&[]).is_err());
}
